// The transfers of a host program, as files in a folder.
#pragma once

#include "acl/acl.h"

using HcclResult = int;
using HcclComm = void*;
enum HcclDataType {
    HCCL_DATA_TYPE_INT32 = 2, HCCL_DATA_TYPE_FP16 = 3, HCCL_DATA_TYPE_FP32 = 4, HCCL_DATA_TYPE_INT64 = 5,
    HCCL_DATA_TYPE_UINT8 = 7, HCCL_DATA_TYPE_FP64 = 10, HCCL_DATA_TYPE_BFP16 = 11
};
struct HcclRootInfo { char internal[4108]; };

HcclResult HcclGetRootInfo(HcclRootInfo*);
HcclResult HcclCommInitRootInfo(uint32_t, const HcclRootInfo*, uint32_t, HcclComm*);
HcclResult HcclCommDestroy(HcclComm);
HcclResult HcclSend(void*, uint64_t, HcclDataType, uint32_t, HcclComm, aclrtStream);
HcclResult HcclRecv(void*, uint64_t, HcclDataType, uint32_t, HcclComm, aclrtStream);
