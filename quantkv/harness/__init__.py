"""The adapter for lm-eval, the Language Model Evaluation Harness: an optional extra.

`lm.py` is the model class; which tokens of a request were prefilled (`prefill.py`), which request a padded
row is (`rows.py`) and how much of what was read was packed (`reads.py`) know nothing of lm-eval.

May be imported by commands.
"""
