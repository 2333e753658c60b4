"""A run's state on the disk, written by one plan and read by any other.

checkpoint     the checkpoints of a run: begun, committed, found, removed
saving         one that all ranks write together
shard          one rank's file of it
manifest       what says that it is complete, and of which run
losses         the losses up to the newest one, in a file of the run
entry          Entry: what a tensor or number in it is
typed          frozen values as JSON, each field of its type
plain          the state of optimizers as JSON
holding        which rank writes what
contributions  what servers have of workers' contributions
ledgers        versions, turns and reads of asynchronous workers
restore        into a rank's state, under any plan
lookup         values by parameter and rows, however they were divided
dividing       gradients in flight, where the state is sharded anew
settings       settings of the optimizer that were changed since
"""
