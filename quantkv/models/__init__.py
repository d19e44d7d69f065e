"""Loading a model by one name, whatever it comes from, and saying which model a number was measured on."""

from quantkv.models.identity import Source, model_identity
from quantkv.models.loading import load_model, model_names
from quantkv.models.synthetic import RANDOM_MODELS, byte_tokenizer, random_model

__all__ = [
    "RANDOM_MODELS",
    "Source",
    "byte_tokenizer",
    "load_model",
    "model_identity",
    "model_names",
    "random_model",
]
