"""The room for running untrusted code. It is empty in this release: no actor executes generated code yet."""
