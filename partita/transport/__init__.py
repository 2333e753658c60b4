"""Tensors from rank to rank of a run; it knows neither Programs nor plans.

transport     Transport, Pending: what a worker asks for, and what it gets
inprocess     all ranks in one process
processes     ranks in processes, over torch.distributed
operations    what of these is under way, as Pending
clocks        their clocks, laid on that of rank 0
ways          two connections between ranks, one each way
channel       a connection whose end another process may take over
hops          a collective of the wire room, hop by hop
streams       the same of sparse vectors
varying       messages of which only the sender knows the length
notifier      a condition variable that wakes only whose wait is over
watchers      threads that wait for one message after the other
loops         gloo's threads, which put off nobody who runs
flows         what the kernel says of connections: whether bytes still move
messages      plain data between rank 0 and the others
signs         signs of life of ranks that nobody watches
store         the store at which ranks meet
"""
