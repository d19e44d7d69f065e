"""Speed: decoding and prefill beside `DynamicCache` in the same minute.

May be imported by benchmarks, and through `rows/kinds.py` by all that treats kinds alike.
"""
