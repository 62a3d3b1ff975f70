"""`python -m peer` is the command `peer`."""

from peer.cli.main import main

main()
