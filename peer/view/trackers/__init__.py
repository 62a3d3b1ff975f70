"""Trackers: copies of a run's numbers for TensorBoard, MLflow and tables. Off unless ``--export`` names one."""
