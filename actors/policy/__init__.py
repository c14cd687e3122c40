"""The policy itself: loading it, generating with it, scoring with it. Everything that touches torch for several actors."""
