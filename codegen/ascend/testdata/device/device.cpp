// A device for tests of host programs: work is done at once, a message is a
// file, and kernels run on the emulator with every allocation as extent.
#include "device.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>

#include "hccl/hccl.h"

namespace AscendC::emulator {
const int64_t kVectorCores = 40;
const int64_t kCubeCores = 20;
}  // namespace AscendC::emulator

namespace {

std::map<uint8_t*, size_t> allocations;
std::string lastError;
int handle;

struct Communicator {
    std::string prefix;
    int next = 0;
};

size_t SizeOf(HcclDataType type) {
    switch (type) {
    case HCCL_DATA_TYPE_UINT8: return 1;
    case HCCL_DATA_TYPE_FP16:
    case HCCL_DATA_TYPE_BFP16: return 2;
    case HCCL_DATA_TYPE_INT64:
    case HCCL_DATA_TYPE_FP64: return 8;
    default: return 4;
    }
}

}  // namespace

uint32_t RunKernel(const AscendC::emulator::Kernel& kernel, uint32_t blocks, std::vector<uint64_t> arguments) {
    static AscendC::emulator::Server server;
    std::vector<AscendC::emulator::Extent> extents;
    for (const auto& entry : allocations) extents.push_back({entry.first, entry.second});
    const AscendC::emulator::FaultReport fault = server.Run(kernel, blocks, std::move(arguments), std::move(extents));
    if (!fault.set) return 0;
    lastError = "block " + std::to_string(fault.block) + ", " + fault.call + ": " + fault.message;
    return 1;
}

aclError aclInit(const char*) { return 0; }
aclError aclFinalize() { return 0; }
const char* aclGetRecentErrMsg() { return lastError.empty() ? nullptr : lastError.c_str(); }
aclError aclrtSetDevice(int32_t) { return 0; }
aclError aclrtResetDevice(int32_t) { return 0; }
aclError aclrtCreateStream(aclrtStream* stream) { *stream = &handle; return 0; }
aclError aclrtDestroyStream(aclrtStream) { return 0; }
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream, int32_t) { return 0; }
aclError aclrtCreateEvent(aclrtEvent* event) { *event = &handle; return 0; }
aclError aclrtDestroyEvent(aclrtEvent) { return 0; }
aclError aclrtRecordEvent(aclrtEvent event, aclrtStream) { return event ? 0 : 1; }
aclError aclrtStreamWaitEvent(aclrtStream, aclrtEvent event) { return event ? 0 : 1; }

aclError aclrtMalloc(void** memory, size_t bytes, aclrtMemMallocPolicy) {
    *memory = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
    std::memset(*memory, 0xff, bytes);   // NaN where nothing was written
    allocations[static_cast<uint8_t*>(*memory)] = bytes;
    return 0;
}

aclError aclrtFree(void* memory) {
    if (allocations.erase(static_cast<uint8_t*>(memory)) == 0) return 1;
    std::free(memory);
    return 0;
}

aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind) {
    if (bytes > room) return 1;
    std::memcpy(to, from, bytes);
    return 0;
}

HcclResult HcclGetRootInfo(HcclRootInfo* info) {
    const char* folder = std::getenv("DEVICE_MESSAGES");
    if (!folder) return 1;
    static int made;
    std::snprintf(info->internal, sizeof info->internal, "%s/%d.%d.", folder, int(getpid()), made++);
    return 0;
}

HcclResult HcclCommInitRootInfo(uint32_t, const HcclRootInfo* info, uint32_t, HcclComm* communicator) {
    *communicator = new Communicator{info->internal};
    return 0;
}

HcclResult HcclCommDestroy(HcclComm communicator) {
    delete static_cast<Communicator*>(communicator);
    return 0;
}

HcclResult HcclSend(void* data, uint64_t count, HcclDataType type, uint32_t, HcclComm handle, aclrtStream) {
    Communicator& c = *static_cast<Communicator*>(handle);
    const std::string name = c.prefix + std::to_string(c.next++);
    std::ofstream(name + ".part", std::ios::binary).write(static_cast<const char*>(data), std::streamsize(count * SizeOf(type)));
    return std::rename((name + ".part").c_str(), name.c_str());
}

HcclResult HcclRecv(void* data, uint64_t count, HcclDataType type, uint32_t, HcclComm handle, aclrtStream) {
    Communicator& c = *static_cast<Communicator*>(handle);
    const std::string name = c.prefix + std::to_string(c.next++);
    const std::streamsize bytes = std::streamsize(count * SizeOf(type));
    for (int tries = 0; tries < 60000; tries++) {
        std::ifstream file(name, std::ios::binary);
        if (file) {
            file.read(static_cast<char*>(data), bytes);
            return file.gcount() == bytes && file.peek() == EOF ? std::remove(name.c_str()) : 1;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return 1;
}
