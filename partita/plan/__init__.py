"""Plan: a method of parallel training as data; nothing here knows how it is carried out.

plan      Plan and its update rule, kernels and phases
mesh      Mesh, Stage, Split: where it runs
schedule  Schedule: the order of passes, and the versions that they read
sync      Sync: how replicas agree
wire      Wire: how that is sent
memory    Memory: state divided, recomputation, precision
formats   whether devices have the format that a plan computes in
parts     whether each part of a minibatch has the samples that it needs
rule      the optimizer that it makes of the task's
check     contradictions, a sentence each
idle      what is asked for and nothing in the plan heeds
text      TOML, both ways
"""
