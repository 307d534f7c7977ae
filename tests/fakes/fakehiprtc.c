/* hipRTC for tests: fakenvrtc.c under hipRTC's names, without what hipRTC lacks. */
#define FAKE_HIPRTC
#define PREFIX(name) hiprtc##name
#include "fakenvrtc.c"
