"""Operations: files that start peers elsewhere, and the examination of a peer's surroundings."""
