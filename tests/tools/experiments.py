"""The start of a small experiment file, without cases: eight peers, two rounds, seconds on one core."""

HEAD = """
title = "A small one"
source = "this test"
peers = 8
seeds = 2
train_samples = 480
test_samples = 160

[graph]
kind = "erdos-renyi"
p = 0.5

[run]
rounds = 2
model_options = { hidden = 8 }
split_options = { samples_per_peer = 60, test_per_peer = 20 }
"""
