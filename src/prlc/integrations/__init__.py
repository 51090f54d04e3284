"""Callbacks for trainers of others, imported only when used.

lightning.py       for `lightning.Trainer`
transformers.py    for Hugging Face's `transformers.Trainer`

Both want `prlc.join(..., hides_torchrun=True)`: a trainer that finds torchrun's variables would
average gradients itself.
"""
