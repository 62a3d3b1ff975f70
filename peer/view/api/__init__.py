"""What `import peer` offers of the view: `Run` and `watch`."""
