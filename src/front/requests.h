/* Requests: what hakmem can be asked and told from outside, as text in, text out. front/service.h has the way they
 * come.
 *
 * A request is one line of plain characters: words with single blanks between them, the first of which is a name in a
 * table (front/requests.c). So a new one is a function and a row.
 */
#ifndef HAK_FRONT_REQUESTS_H
#define HAK_FRONT_REQUESTS_H

#include "base/format.h"

enum { HAK_REQUEST_BYTES = 256 };

/* Where an answer goes. It is written in pieces of any size, and sent as the text fills. */
struct hak_answer {
    struct hak_text text;
    bool (*send)(const char *text, size_t length); /* false: nobody listens any more */
    bool is_lost;
};

/* Sends what there is, so that so many bytes are free. False when nobody listens: whoever writes may as well stop. */
HAK_COLD bool hak_answer_make_room(struct hak_answer *answer, size_t bytes);

/* Carries out a request and writes its answer: a line "ok", or "error: " and why; what was asked for; and a line
 * "end". */
HAK_COLD void hak_request_answer(char *line, struct hak_answer *answer);

#endif
