/* A library that does as a script says: lines of "key value", read anew at each call.
 *
 * FUNCTION.DEVICE or FUNCTION gives what a function returns, "hang.FUNCTION 1" that it does not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static double script(const char *key, double fallback) {
    const char *path = getenv("DFX_TEST_SCRIPT");
    FILE *file = path ? fopen(path, "r") : NULL;
    char name[128];
    double value, found = fallback;
    if (!file) return fallback;
    while (fscanf(file, "%127s %lf", name, &value) == 2)
        if (!strcmp(name, key)) found = value;
    fclose(file);
    return found;
}

static double of_device(const char *key, int device, double fallback) {
    char name[128];
    snprintf(name, sizeof name, "%s.%d", key, device);
    return script(name, script(key, fallback));
}

static int outcome(const char *function, int device) {
    char name[128];
    snprintf(name, sizeof name, "hang.%s", function);
    while (script(name, 0)) usleep(1000);
    return (int)of_device(function, device, 0);
}
