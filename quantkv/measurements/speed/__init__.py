"""Speed: decoding and prefill beside `DynamicCache` in the same minute."""
