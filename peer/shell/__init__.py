"""The shell of one peer, in parts: what executes the engine's effects. `peer.runtime` puts them together."""
