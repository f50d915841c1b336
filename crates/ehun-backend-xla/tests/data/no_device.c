/* A PJRT plugin that loads and whose client cannot start, as libtpu's without a TPU. The first functions of the table, by
 * their places in pjrt_c_api.h; all others are null. */
#include <stddef.h>

struct table {
    size_t size;
    void *extension;
    struct { size_t size; void *extension; int major, minor; } version;
    void *functions[200];
};
struct message { size_t size; void *extension; void *error; const char *text; size_t length; };
struct code { size_t size; void *extension; void *error; int code; };

static const char words[] = "no device of this kind is here";

static void *nothing(void *arguments) { (void)arguments; return NULL; }
static void *failed(void *arguments) { (void)arguments; return (void *)words; }
static void *message(struct message *out) { out->text = words; out->length = sizeof words - 1; return NULL; }
static void *code(struct code *out) { out->code = 5; return NULL; }

const struct table *GetPjrtApi(void) {
    static struct table table;
    table.size = sizeof table;
    table.version.size = sizeof table.version;
    table.version.minor = 90;
    table.functions[0] = (void *)nothing;  /* PJRT_Error_Destroy */
    table.functions[1] = (void *)message;  /* PJRT_Error_Message */
    table.functions[2] = (void *)code;     /* PJRT_Error_GetCode */
    table.functions[3] = (void *)nothing;  /* PJRT_Plugin_Initialize */
    table.functions[10] = (void *)failed;  /* PJRT_Client_Create */
    return &table;
}
