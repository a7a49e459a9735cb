"""Copies within the first GPU until it is killed: the neighbour that a check has to notice. Needs gpu_checks' path."""

from gpu_checks.cuda_async import AsyncApi

SIZE = 256 << 20
IN_FLIGHT = 16

if __name__ == "__main__":
    api = AsyncApi()
    api.init()
    api.retain(0)
    source, target, stream = api.allocate(SIZE), api.allocate(SIZE), api.stream()
    print("copying", flush=True)
    while True:
        for _ in range(IN_FLIGHT):
            api.copy(target, source, SIZE, stream)
        api.synchronize(stream)
