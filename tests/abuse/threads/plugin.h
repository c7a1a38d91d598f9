/* What plugin.c offers to its host. */
#ifndef HAK_TEST_PLUGIN_H
#define HAK_TEST_PLUGIN_H

/* Allocates, checks and frees; returns a filled block that the host may free after the plugin has gone, or NULL when
 * something was wrong. */
typedef unsigned char *plugin_work(unsigned seed);

enum { PLUGIN_KEPT_BYTES = 777, PLUGIN_KEPT_TAG = 0x5C };

#endif
