"""One file per algorithm behind one small interface (`peer.algorithms.base`)."""
