/* SPDX-License-Identifier: Apache-2.0
 *
 * What the pods of the tests do.
 *
 *   load hold MIB [GRACE]        touch that much memory, then sleep; with GRACE, end that many seconds after SIGTERM
 *   load grow MIB RATE           touch that much at RATE MiB a second, then sleep
 *   load wait FILE MIB RATE      grow once the file exists
 *   load fork COUNT              start that many processes that sleep
 *   load idle                    sleep
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MIB (1L << 20)
#define PAGE 4096L

static unsigned int grace_seconds;

static void end(int number)
{
	(void)number;
	sleep(grace_seconds);
	_exit(0);
}

static void touch(long mib, long mib_per_second)
{
	volatile char *memory = mmap(NULL, mib * MIB, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		exit(1);
	madvise((void *)memory, mib * MIB, MADV_NOHUGEPAGE);
	for (long done = 0; done < mib; done++) {
		for (long offset = 0; offset < MIB; offset += PAGE)
			memory[done * MIB + offset] = 1;
		if (mib_per_second)
			usleep(1000000 / mib_per_second);
	}
}

int main(int count, char **arguments)
{
	const char *mode = count > 1 ? arguments[1] : "";

	signal(SIGTERM, end); /* the first process of a pid namespace has no default */
	if (!strcmp(mode, "hold") && count > 2) {
		grace_seconds = count > 3 ? atoi(arguments[3]) : 0;
		touch(atol(arguments[2]), 0);
	} else if (!strcmp(mode, "grow") && count == 4) {
		touch(atol(arguments[2]), atol(arguments[3]));
	} else if (!strcmp(mode, "wait") && count == 5) {
		while (access(arguments[2], F_OK))
			usleep(2000);
		touch(atol(arguments[3]), atol(arguments[4]));
	} else if (!strcmp(mode, "fork") && count == 3) {
		for (long i = 0; i < atol(arguments[2]); i++)
			if (fork() == 0) {
				prctl(PR_SET_PDEATHSIG, SIGKILL);
				signal(SIGTERM, SIG_DFL);
				for (;;)
					pause();
			}
	} else if (strcmp(mode, "idle")) {
		fprintf(stderr, "load: one of hold, grow, wait, fork, idle with their arguments\n");
		return 1;
	}
	for (;;)
		pause();
}
