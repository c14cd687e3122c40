"""The policy itself: loading it, generating with it, scoring with it; what several actors need of torch."""
