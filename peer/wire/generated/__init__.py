"""Generated from proto/peer/v1/peer.proto by proto/generate.py; not edited by hand."""
