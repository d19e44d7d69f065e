"""The adapter for lm-eval, the Language Model Evaluation Harness: an optional extra.

`lm.py` is the model class. Which request a padded row is, and which of its tokens were prefilled
(`requests.py`), and how much of what was read was packed (`reads.py`) know nothing of lm-eval.

May be imported by commands.
"""
