/* SPDX-License-Identifier: MIT */
/*
 * The libnccl of stub_collective.c: ranks meet in a shared file.
 *
 * STUB_RANK1=kind@n: what rank 1 does at its n-th all-reduce (0: when it joins):
 * hang, kill, wrong, nan, fail, shm, driver. STUB_FOLDER: where the file is.
 */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLOT (64UL << 20)
#define MOST_RANKS 4

struct region {
	_Atomic uint64_t joined, arrived[MOST_RANKS];
	char slots[];
};
struct comm {
	int rank, world, local, ordinal;
	uint64_t sequence, operations;
	struct region *region;
};

static int group;
static char last_error[256];

/* What rank 1 does at this operation, or "". */
static const char *fault(const struct comm *comm)
{
	static char kind[16];
	const char *wish = getenv("STUB_RANK1"), *at = wish ? strchr(wish, '@') : NULL;

	if (!at || comm->rank != 1 || strtoull(at + 1, NULL, 10) != comm->operations)
		return "";
	snprintf(kind, sizeof(kind), "%.*s", (int)(at - wish), wish);
	return kind;
}

/* Both ranks' data is there: add it. 0: not yet. */
static int reduce(struct op *op)
{
	struct comm *comm = op->object;
	float *out = (float *)op->b, *slot;
	const char *kind;

	if (!op->arrived) {
		comm->operations++;
		kind = fault(comm);
		if (!strcmp(kind, "kill"))
			raise(SIGKILL);
		op->arrived = strcmp(kind, "hang") ? 1 : 2;
		comm->sequence++;
		memcpy(comm->region->slots + (comm->sequence % 2 * comm->world + comm->rank) * SLOT, (void *)op->a, op->c * 4);
		if (op->arrived == 1)
			atomic_store(&comm->region->arrived[comm->rank], comm->sequence);
	}
	for (int rank = 0; rank < comm->world; rank++)
		if (atomic_load(&comm->region->arrived[rank]) < comm->sequence)
			return 0;
	memset(out, 0, op->c * 4);
	for (int rank = 0; rank < comm->world; rank++) {
		slot = (float *)(comm->region->slots + (comm->sequence % 2 * comm->world + rank) * SLOT);
		for (uint64_t i = 0; i < op->c; i++)
			out[i] += slot[i];
	}
	kind = fault(comm);
	if (!strcmp(kind, "wrong"))
		out[op->c - 1] += 1;
	if (!strcmp(kind, "nan"))
		out[op->c - 1] = NAN;
	return 1;
}

typedef struct { char internal[128]; } ncclUniqueId;

static int refuse(const char *text, int result)
{
	snprintf(last_error, sizeof(last_error), "%s", text);
	return result;
}

int ncclGetVersion(int *version) { *version = 22809; return 0; }
const char *ncclGetErrorString(int result) { return result == 1 ? "unhandled cuda error" : result == 5 ? "invalid usage" : "unhandled system error"; }
const char *ncclGetLastError(void *comm) { (void)comm; return last_error; }
int ncclGroupStart(void) { group++; return 0; }
int ncclGroupEnd(void) { group--; return 0; }
int ncclCommDestroy(struct comm *comm) { return comm && comm->ordinal == current ? 0 : 4; }

int ncclGetUniqueId(ncclUniqueId *id)
{
	int file;

	snprintf(id->internal, sizeof(id->internal), "%s/stub_nccl_XXXXXX", getenv("STUB_FOLDER"));
	file = mkstemp(id->internal);
	id->internal[127] = 'x';
	return file < 0 || ftruncate(file, sizeof(struct region) + 2 * MOST_RANKS * SLOT) ? 2 : close(file);
}

static struct comm *make(int rank, int world, int local, int ordinal, int file)
{
	struct comm *comm = calloc(1, sizeof(*comm));
	size_t size = sizeof(struct region) + 2 * MOST_RANKS * SLOT;
	int flags = file < 0 ? MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;

	*comm = (struct comm){.rank = rank, .world = world, .local = local, .ordinal = ordinal};
	comm->region = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, file, 0);
	printf("stub:1:1 [%d] NCCL INFO Channel 00/0 : %d[%d] -> %d[%d] via P2P/%s\n", ordinal, rank, ordinal, 1 - rank,
	       1 - ordinal, local > 1 ? "direct pointer" : "CUMEM");
	return comm;
}

int ncclCommInitRank(struct comm **comm, int world, ncclUniqueId id, int rank)
{
	int file = open(id.internal, O_RDWR);
	const char *kind;

	if (file < 0 || id.internal[127] != 'x' || current < 0)
		return refuse("Bootstrap : the id is not what was made", 4);
	*comm = make(rank, world, 1, current, file);
	kind = fault(*comm);
	if (!strcmp(kind, "shm"))
		return refuse("Error: failed to extend /dev/shm/nccl-stub to 9 bytes, error: No space left on device (28)", 2);
	if (!strcmp(kind, "driver"))
		return refuse("Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'", 1);
	if (!strcmp(kind, "fail"))
		return refuse("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000", 5);
	if (!strcmp(kind, "kill"))
		abort();
	if (!strcmp(kind, "hang"))
		sleep(600);
	atomic_fetch_add(&(*comm)->region->joined, 1);
	while (atomic_load(&(*comm)->region->joined) < (uint64_t)world)
		usleep(100);
	unlink(id.internal);
	return 0;
}

int ncclCommInitAll(struct comm **comms, int count, const int *ordinals)
{
	for (int rank = 0; rank < count; rank++) {
		comms[rank] = make(rank, count, count, ordinals[rank], -1);
		if (rank)
			comms[rank]->region = comms[0]->region;
	}
	return 0;
}

int ncclAllReduce(const void *source, void *target, size_t count, int type, int operation, struct comm *comm,
		  struct stream *stream)
{
	struct op op = {.kind = REDUCE, .a = (uint64_t)source, .b = (uint64_t)target, .c = count, .object = comm};
	int was = current, result;

	if (type != 7 || operation != 0 || (comm->local > 1) != (group > 0))
		return refuse("wrong type, operation or group", 5);
	comm->operations++;
	if (!strcmp(fault(comm), "fail")) /* counted when it is queued: a stub's word is as good */
		return refuse("Call to send failed : Connection reset by peer", 2);
	comm->operations--;
	/* As NCCL does: the communicator's own GPU, whatever the current one is. */
	current = comm->ordinal;
	result = queue(stream, op);
	current = was;
	return result ? refuse("the stream is of another GPU", 4) : 0;
}
