"""Procedural task sources: problems whose answers are known, at levels, split into train and eval."""
