"""The protocol engine: events in, effects out. Pure: no clock, socket, thread or process-wide random state."""
