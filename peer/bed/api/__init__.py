"""What `import peer` offers of the bed: `Testbed`."""
