"""The same script as a task of four sites: ``peer testbed --peers 4 --set run.task=with_trainer.py:task``; alone as before."""

import sys
from pathlib import Path

from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

import peer

FOLDER = Path(__file__).parents[1] / "files" / "sentences"  # examples/make_files.py writes it
LABELS = ("complaint", "question", "thanks")
EPOCHS = 4


def make_model():
    """Return the base model with new adapters."""
    base = AutoModelForSequenceClassification.from_pretrained(FOLDER / "base", num_labels=len(LABELS))
    return get_peft_model(base, LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8, target_modules=["q_lin", "v_lin"]))


def load_data(site):
    """Return the sentences of one office as token ids, for training and test."""
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "base")
    rows = load_dataset("json", data_files=str(FOLDER / f"site-{site}.jsonl"), split="train", keep_in_memory=True)
    ids = tokenizer(list(rows["text"]), max_length=24, padding="max_length", truncation=True)
    labels = [LABELS.index(label) for label in rows["label"]]
    rows = rows.from_dict({**ids, "labels": labels})
    return rows.train_test_split(0.25, shuffle=False)


def accuracy(found):
    """Return the share of right labels."""
    return {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}


def make_trainer(model, data):
    """Return a trainer with a linear schedule."""
    args = TrainingArguments("trainer", num_train_epochs=EPOCHS, learning_rate=0.01, use_cpu=True)
    return Trainer(model, args, train_dataset=data["train"], eval_dataset=data["test"], compute_metrics=accuracy)


task = peer.transformers.task(make_model, load_data, make_trainer)

if __name__ == "__main__":
    trainer = make_trainer(make_model(), load_data(int(sys.argv[1])))
    trainer.train()
    print(trainer.evaluate())
