/* Blocks that the C library allocates for the program, or grows, or frees: they are ours, and our free takes them. */
#include "expect.h"

#include <dirent.h>
#include <ftw.h>
#include <glob.h>
#include <iconv.h>
#include <locale.h>
#include <net/if.h>
#include <netdb.h>
#include <regex.h>
#include <search.h>
#include <spawn.h>
#include <sys/socket.h>
#include <wchar.h>

#define EXPECT_OURS(block) EXPECT(owned(block), #block " %p is not ours", (void *)(block))

/* Three in a row, so that a block that went back to the wrong allocator is met again. */
enum { REPEAT = 3 };

static void strings(void) {
    for (int i = 0; i < REPEAT; i++) {
        char *copy = strdup("a string");
        EXPECT_OURS(copy);
        char *part = strndup("a string", 3);
        EXPECT_OURS(part);
        wchar_t *wide = wcsdup(L"a wide string");
        EXPECT_OURS(wide);
        char *printed = NULL;
        int length = asprintf(&printed, "%d %s %0500d", 42, copy, 7);
        EXPECT(length == 512 && !strncmp(printed, "42 a string 000", 15), "asprintf gave %d", length);
        EXPECT_OURS(printed);
        copy = realloc(copy, 100000);
        EXPECT(copy && !strcmp(copy, "a string"), "strdup's block grown is \"%.10s\"", copy);
        char *scanned = NULL;
        int count = sscanf("word rest", "%ms", &scanned);
        EXPECT(count == 1 && !strcmp(scanned, "word"), "sscanf gave %d", count);
        EXPECT_OURS(scanned);
        free(scanned);
        free(printed);
        free(wide);
        free(part);
        free(copy);
    }
}

static void lines(void) {
    FILE *file = tmpfile();
    EXPECT(file, "tmpfile");
    for (int i = 0; i < 200; i++) {
        fprintf(file, "%0*d\n", i * 10 + 1, i);
    }
    for (int i = 0; i < REPEAT; i++) {
        rewind(file);
        char *line = malloc(1); /* getline grows our block */
        size_t capacity = 1;
        ssize_t length;
        int count = 0;
        while ((length = getline(&line, &capacity, file)) > 0) {
            EXPECT(length == count * 10 + 2 && atoi(line) == count, "line %d has %zd bytes", count, length);
            EXPECT_OURS(line);
            count++;
        }
        EXPECT(count == 200 && malloc_usable_size(line) >= 1992, "%d lines", count);
        free(line);
        rewind(file);
        char *word = NULL;
        capacity = 0;
        EXPECT(getdelim(&word, &capacity, '\n', file) == 2, "getdelim");
        EXPECT_OURS(word);
        free(word);
    }
    fclose(file);
}

static void paths(void) {
    for (int i = 0; i < REPEAT; i++) {
        char *path = realpath("/usr/../usr/.", NULL);
        EXPECT(path && !strcmp(path, "/usr"), "realpath gave %s", path ? path : "NULL");
        EXPECT_OURS(path);
        char *name = canonicalize_file_name("/");
        EXPECT_OURS(name);
        char *current = getcwd(NULL, 0);
        EXPECT(current && *current == '/', "getcwd");
        EXPECT_OURS(current);
        char *other = get_current_dir_name();
        EXPECT_OURS(other);
        free(path);
        free(name);
        free(current);
        free(other);
    }
}

static void streams(void) {
    for (int i = 0; i < REPEAT; i++) {
        char *text = NULL;
        size_t length = 0;
        FILE *stream = open_memstream(&text, &length);
        EXPECT(stream, "open_memstream");
        for (int n = 0; n < 20000; n++) {
            fprintf(stream, "%d,", n);
        }
        fclose(stream);
        EXPECT(length == strlen(text) && !strncmp(text, "0,1,2,", 6), "open_memstream wrote %zu bytes", length);
        EXPECT_OURS(text);
        free(text);
        wchar_t *wide = NULL;
        stream = open_wmemstream(&wide, &length);
        EXPECT(stream, "open_wmemstream");
        fwprintf(stream, L"%d", 12345);
        fclose(stream);
        EXPECT(wide && !wcscmp(wide, L"12345"), "open_wmemstream");
        EXPECT_OURS(wide);
        free(wide);
        stream = fmemopen(NULL, 1000, "w+");
        EXPECT(stream, "fmemopen");
        fprintf(stream, "hello");
        fclose(stream);
    }
}

static void directories(void) {
    for (int i = 0; i < REPEAT; i++) {
        struct dirent **entries = NULL;
        int count = scandir("/usr", &entries, NULL, alphasort);
        EXPECT(count > 2, "scandir gave %d", count);
        EXPECT_OURS(entries);
        for (int n = 0; n < count; n++) {
            EXPECT_OURS(entries[n]);
            free(entries[n]);
        }
        free(entries);
        glob_t matches;
        int code = glob("/usr/*", 0, NULL, &matches);
        EXPECT(code == 0 && matches.gl_pathc > 0, "glob gave %d", code);
        EXPECT_OURS(matches.gl_pathv);
        globfree(&matches);
    }
}

static void network(void) {
    for (int i = 0; i < REPEAT; i++) {
        struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
        struct addrinfo *addresses = NULL;
        int code = getaddrinfo("127.0.0.1", "80", &hints, &addresses);
        EXPECT(code == 0 && addresses, "getaddrinfo gave %d", code);
        EXPECT_OURS(addresses);
        freeaddrinfo(addresses);
        struct if_nameindex *names = if_nameindex();
        if (names) {
            EXPECT_OURS(names);
            if_freenameindex(names);
        }
    }
}

/* What the library allocates and frees out of our sight: it works, and nothing of it disturbs the heap. */

static int compare_ints(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static void within(void) {
    for (int i = 0; i < REPEAT; i++) {
        regex_t expression;
        EXPECT(!regcomp(&expression, "^(a|b)+[0-9]{2,7}(x.*y)?$", REG_EXTENDED), "regcomp");
        EXPECT(!regexec(&expression, "abab123xzzy", 0, NULL, 0), "regexec");
        regfree(&expression);
        locale_t locale = newlocale(LC_ALL_MASK, "C", NULL);
        EXPECT(locale, "newlocale");
        freelocale(locale);
        iconv_t converter = iconv_open("UTF-16LE", "UTF-8");
        if (converter != (iconv_t)-1) { /* a small system has no converters */
            iconv_close(converter);
        }
        static int numbers[200000];
        for (size_t n = 0; n < COUNT_OF(numbers); n++) {
            numbers[n] = (int)((n * 7919) % COUNT_OF(numbers));
        }
        qsort(numbers, COUNT_OF(numbers), sizeof(numbers[0]), compare_ints);
        EXPECT(numbers[0] == 0 && numbers[199999] == 199999, "qsort");
        void *root = NULL;
        for (size_t n = 0; n < 1000; n++) {
            int *key = malloc(sizeof(int));
            *key = (int)n;
            EXPECT(tsearch(key, &root, compare_ints), "tsearch");
        }
        tdestroy(root, free);
        for (int n = 0; n < 500; n++) {
            char name[32];
            snprintf(name, sizeof(name), "HAK_TEST_VARIABLE_%d", n);
            EXPECT(!setenv(name, "value", 1), "setenv");
            EXPECT(!unsetenv(name), "unsetenv");
        }
        FILE *file = fopen("/etc/passwd", "r");
        if (file) {
            char line[1000];
            EXPECT(fgets(line, sizeof(line), file), "fgets");
            fclose(file);
        }
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        for (int n = 0; n < 50; n++) {
            posix_spawn_file_actions_addclose(&actions, 100 + n);
        }
        posix_spawn_file_actions_destroy(&actions);
        void *library = dlopen("libm.so.6", RTLD_NOW);
        if (library) {
            EXPECT(dlsym(library, "cos"), "libm has no cos");
            dlclose(library);
        }
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"strings", strings},         {"lines", lines},     {"paths", paths},   {"streams", streams},
        {"directories", directories}, {"network", network}, {"within", within},
    };
    return run_case(argc, argv, cases, COUNT_OF(cases), 20);
}
