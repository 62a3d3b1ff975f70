"""The examination of a peer's machine and its edges."""
