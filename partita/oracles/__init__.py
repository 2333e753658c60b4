"""What a run must equal: the same training in plain PyTorch, in one process; `check` compares.

check           whether a plan's training is what its class promises
trial           a plan's training beside the serial one that it has to equal
reference       synchronous plans
half_precision  these in half precision
captured        gradients of the captured step, where those of the model differ
lossy           what codecs leave of gradients
replicas        replicas that train apart
coupling        what brings these together
elastic         workers tied to a centre, at their own pace
pairwise        workers that average in pairs
replay          servers that do not wait for all, from their ledger
served_legs     which minibatches a worker's pushes are of
turns           who contributes what to a sum
mean            whether a loss may be computed in parts
undetermined    weights that gradients do not determine
target          steps to a loss by minibatch: K(B)
"""
