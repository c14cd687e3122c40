"""Who acts: curriculum, generator, verifier, reward, replay, learner, evaluator; and what they share.

No actor imports another one; `policy`, `verifiers` and `domains` are what several of them use.
"""
