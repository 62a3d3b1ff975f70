"""Files of one peer: checkpoints, run history, final models, incarnation and lock of its state directory.

A file has its old content or its new content, never a mixture. Content that this peer did not write is refused.
"""
