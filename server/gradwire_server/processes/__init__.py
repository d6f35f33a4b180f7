"""Processes of the server: one alone, or a supervisor with its workers."""
