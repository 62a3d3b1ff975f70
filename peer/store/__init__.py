"""A peer's disk: checkpoints, run history, final models, the incarnation and the lock of its state directory.

What is promised: a file is old or new, never half; whatever is read back was written by this peer, byte for byte, or
is refused.
"""
