"""More algorithms, one file each: decisions (pure) and work on tensors."""
