"""Elastic: a training on workers whose number and batch change at step boundaries, with no sample lost.

def train(job):                                       # JOB.yaml: entry: package.module:train
    model, optimizer, data = ...
    run = job.prepare(model, optimizer, data)
    for inputs, labels in run:
        run.backward(loss_of(model(inputs), labels))
        run.step()
"""
