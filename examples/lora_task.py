"""Example task: LoRA adapters of a small text model, trained on each device's own file of sentences.

The base model stays on every device, frozen: only the adapters (Hu et al., "LoRA", 2021, arXiv 2106.09685) and the head travel.
The neighbors compare a digest of the base in the handshake, so peers with different bases refuse each other. Nothing is fetched
from a hub.

    pip install 'coordinator-free[hf]'
    python examples/make_files.py                # a JSON-lines file of each device, a base model with random weights, a tokenizer
    peer task check examples/lora_task.py:task
    python examples/lora_task.py                 # four peers; prints the bytes sent beside those of the whole model

Replace the files of `FOLDER` by your own: ``base`` as `save_pretrained` writes it, and a JSON-lines file per device with
``text`` and ``label``.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from peer.tasks import Preprocessing, Shard, Task
from peer.tasks.torchvision_shim import import_for_user_code

import_for_user_code()  # transformers imports torchvision, whose usual build fails beside a CPU build of torch

FOLDER = Path(__file__).parent / "files" / "sentences"
LABELS = ("complaint", "question", "thanks")
TOKENS = 24  # of a sentence; longer ones are cut
PADDING = 0


class Adapted(nn.Module):
    """A text classifier that takes token ids, int64 [n, tokens], and gives logits [n, classes]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits; padding is not read."""
        logits: Tensor = self.model(input_ids=ids, attention_mask=(ids != PADDING).long()).logits
        return logits


class LoraTask(Task):
    """Classify sentences of support mail; each device has its own file.

    Args:
        rank: of the adapters.
    """

    classes = len(LABELS)
    class_names = LABELS
    preprocessing = Preprocessing()  # token ids are the inputs of the model

    def __init__(self, rank: int = 4) -> None:
        self.rank = rank

    def make_model(self) -> nn.Module:
        """Return the base model in `FOLDER` with new adapters; parameters of the base have no gradient and do not travel."""
        from peft import LoraConfig, TaskType, get_peft_model
        from transformers import AutoModelForSequenceClassification, logging

        logging.disable_progress_bar()
        base = AutoModelForSequenceClassification.from_pretrained(
            FOLDER / "base", num_labels=len(LABELS), local_files_only=True, dtype=torch.float32
        )
        adapters = LoraConfig(
            task_type=TaskType.SEQ_CLS,
            r=self.rank,
            lora_alpha=2 * self.rank,
            target_modules=["q_lin", "v_lin"],
            modules_to_save=["pre_classifier", "classifier"],
        )
        return Adapted(get_peft_model(base, adapters))

    def load_shard(self, peer_id: int) -> Shard:
        """Return the sentences of one device as token ids."""
        from datasets import disable_progress_bars, load_dataset

        disable_progress_bars()
        path = FOLDER / f"site-{peer_id}.jsonl"
        with TemporaryDirectory() as cache:
            rows = load_dataset("json", data_files=str(path), split="train", cache_dir=cache, keep_in_memory=True)
        ids = token_ids(list(rows["text"]))
        labels = np.array([LABELS.index(label) for label in rows["label"]])
        cut = len(ids) * 3 // 4
        return Shard(train_x=ids[:cut], train_y=labels[:cut], test_x=ids[cut:], test_y=labels[cut:])

    def encode(self, rows: list[dict[str, str]], preprocessing: Preprocessing) -> np.ndarray:
        """Return inputs of the model for JSON lines of sentences."""
        return token_ids([row["text"] for row in rows])


def token_ids(sentences: list[str]) -> np.ndarray:
    """Return the token ids of sentences, int64 [n, `TOKENS`]."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "base", local_files_only=True)
    settings = {"max_length": TOKENS, "padding": "max_length", "truncation": True, "return_tensors": "np"}
    return tokenizer(sentences, **settings)["input_ids"].astype(np.int64)


task = LoraTask()


def main() -> None:
    """Train four peers, and print the bytes that one peer sends to one neighbor in a round, and those of the whole model."""
    import peer

    settings = {"algorithm": "dfedavg", "rounds": 8, "optimizer": "adam", "learning_rate": 0.01, "batch_size": 32}
    graph = peer.Graph.make("complete", peers=4, run=settings)
    run = peer.simulate(graph, task, progress=False)
    model = run.personalized(0)
    whole = sum(tensor.nbytes for tensor in model.state_dict().values())
    sent = run.metrics["payload_bytes_sent"] / run.metrics["models_sent"]
    print(f"accuracy {run.metrics['metric_mean']:.3f}, mean of {len(graph.nodes)} peers")
    print(
        f"bytes of a model that is sent {sent:.0f}; bytes of the whole model {whole}; {whole / sent:.1f} times as many"
    )


if __name__ == "__main__":
    main()
