"""Turns batches of rewarded rollouts into better weights, and pairs into a starting policy (SFT)."""
