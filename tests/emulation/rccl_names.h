/* The functions of RCCL at the level of NCCL 2.30, as AMD's Cython bindings declare them; tests/amd compares. */
#ifndef HETCCL_EMULATION_RCCL_NAMES_H
#define HETCCL_EMULATION_RCCL_NAMES_H

#define RCCL_NAMES(X) \
    X(ncclAllGather) X(ncclAllReduce) X(ncclAllReduceWithBias) X(ncclAllToAll) X(ncclAllToAllv) X(ncclAlltoAll) \
    X(ncclAlltoAllv) X(ncclBcast) X(ncclBroadcast) X(ncclCommAbort) X(ncclCommCount) X(ncclCommCuDevice) \
    X(ncclCommDeregister) X(ncclCommDestroy) X(ncclCommFinalize) X(ncclCommGetAsyncError) X(ncclCommGetUniqueId) \
    X(ncclCommGrow) X(ncclCommInitAll) X(ncclCommInitRank) X(ncclCommInitRankConfig) X(ncclCommInitRankScalable) \
    X(ncclCommMemStats) X(ncclCommRegister) X(ncclCommResume) X(ncclCommRevoke) X(ncclCommShrink) X(ncclCommSplit) \
    X(ncclCommSuspend) X(ncclCommUserRank) X(ncclCommWindowDeregister) X(ncclCommWindowRegister) X(ncclGather) \
    X(ncclGetErrorString) X(ncclGetLastError) X(ncclGetUniqueId) X(ncclGetVersion) X(ncclGroupEnd) \
    X(ncclGroupSimulateEnd) X(ncclGroupStart) X(ncclMemAlloc) X(ncclMemFree) X(ncclParamBind) X(ncclParamDumpAll) \
    X(ncclParamGet) X(ncclParamGetAllParameterKeys) X(ncclParamGetI16) X(ncclParamGetI32) X(ncclParamGetI64) \
    X(ncclParamGetI8) X(ncclParamGetParameter) X(ncclParamGetStr) X(ncclParamGetU16) X(ncclParamGetU32) \
    X(ncclParamGetU64) X(ncclParamGetU8) X(ncclPutSignal) X(ncclRecv) X(ncclRedOpCreatePreMulSum) \
    X(ncclRedOpDestroy) X(ncclReduce) X(ncclReduceScatter) X(ncclResetDebugInit) X(ncclScatter) X(ncclSend) \
    X(ncclSignal) X(ncclWaitSignal) X(ncclWinGetUserPtr)

#endif
