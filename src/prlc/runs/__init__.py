"""One run from start to end, and what it leaves on disk.

training.py     steps, evaluations, checkpoints
folder.py       the files of a run, whole or not there
evaluation.py   how good the global model is
jobs.py         from settings to a job for an engine
tensorboard.py  the metrics as TensorBoard events
"""
