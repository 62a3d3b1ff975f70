"""Deployment of a graph file to containers, Kubernetes and devices, and what supervised processes need."""
