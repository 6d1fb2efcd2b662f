// The functions of NVIDIA's driver that libraries may link against, as CUDA 13 declares them: a library loads only if all
// that it names are there.
#pragma once

#define FOR_EACH_CUDA_FUNCTION(X) \
  X(cuArray3DCreate) X(cuArray3DCreate_v2) X(cuArray3DGetDescriptor) X(cuArray3DGetDescriptor_v2) X(cuArrayCreate) \
  X(cuArrayCreate_v2) X(cuArrayDestroy) X(cuArrayGetDescriptor) X(cuArrayGetDescriptor_v2) \
  X(cuArrayGetMemoryRequirements) X(cuArrayGetPlane) X(cuArrayGetSparseProperties) X(cuCheckpointProcessCheckpoint) \
  X(cuCheckpointProcessGetRestoreThreadId) X(cuCheckpointProcessGetState) X(cuCheckpointProcessLock) \
  X(cuCheckpointProcessRestore) X(cuCheckpointProcessUnlock) X(cuCoredumpGetAttribute) \
  X(cuCoredumpGetAttributeGlobal) X(cuCoredumpSetAttribute) X(cuCoredumpSetAttributeGlobal) X(cuCtxAttach) \
  X(cuCtxCreate) X(cuCtxCreate_v2) X(cuCtxCreate_v3) X(cuCtxCreate_v4) X(cuCtxDestroy) X(cuCtxDestroy_v2) \
  X(cuCtxDetach) X(cuCtxDisablePeerAccess) X(cuCtxEnablePeerAccess) X(cuCtxFromGreenCtx) X(cuCtxGetApiVersion) \
  X(cuCtxGetCacheConfig) X(cuCtxGetCurrent) X(cuCtxGetDevResource) X(cuCtxGetDevice) X(cuCtxGetDevice_v2) \
  X(cuCtxGetExecAffinity) X(cuCtxGetFlags) X(cuCtxGetId) X(cuCtxGetLimit) X(cuCtxGetSharedMemConfig) \
  X(cuCtxGetStreamPriorityRange) X(cuCtxPopCurrent) X(cuCtxPopCurrent_v2) X(cuCtxPushCurrent) X(cuCtxPushCurrent_v2) \
  X(cuCtxRecordEvent) X(cuCtxResetPersistingL2Cache) X(cuCtxSetCacheConfig) X(cuCtxSetCurrent) X(cuCtxSetFlags) \
  X(cuCtxSetLimit) X(cuCtxSetSharedMemConfig) X(cuCtxSynchronize) X(cuCtxSynchronize_v2) X(cuCtxWaitEvent) \
  X(cuDestroyExternalMemory) X(cuDestroyExternalSemaphore) X(cuDevResourceGenerateDesc) \
  X(cuDevSmResourceSplitByCount) X(cuDeviceCanAccessPeer) X(cuDeviceComputeCapability) X(cuDeviceGet) \
  X(cuDeviceGetAttribute) X(cuDeviceGetByPCIBusId) X(cuDeviceGetDefaultMemPool) X(cuDeviceGetDevResource) \
  X(cuDeviceGetExecAffinitySupport) X(cuDeviceGetGraphMemAttribute) X(cuDeviceGetHostAtomicCapabilities) \
  X(cuDeviceGetLuid) X(cuDeviceGetMemPool) X(cuDeviceGetName) X(cuDeviceGetNvSciSyncAttributes) \
  X(cuDeviceGetP2PAtomicCapabilities) X(cuDeviceGetP2PAttribute) X(cuDeviceGetPCIBusId) X(cuDeviceGetProperties) \
  X(cuDeviceGetTexture1DLinearMaxWidth) X(cuDeviceGetUuid) X(cuDeviceGetUuid_v2) X(cuDeviceGraphMemTrim) \
  X(cuDevicePrimaryCtxGetState) X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxRelease_v2) \
  X(cuDevicePrimaryCtxReset) X(cuDevicePrimaryCtxReset_v2) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxSetFlags) \
  X(cuDevicePrimaryCtxSetFlags_v2) X(cuDeviceRegisterAsyncNotification) X(cuDeviceSetGraphMemAttribute) \
  X(cuDeviceSetMemPool) X(cuDeviceTotalMem) X(cuDeviceTotalMem_v2) X(cuDeviceUnregisterAsyncNotification) \
  X(cuEventCreate) X(cuEventDestroy) X(cuEventDestroy_v2) X(cuEventElapsedTime) X(cuEventElapsedTime_v2) \
  X(cuEventQuery) X(cuEventRecord) X(cuEventRecordWithFlags) X(cuEventSynchronize) \
  X(cuExternalMemoryGetMappedBuffer) X(cuExternalMemoryGetMappedMipmappedArray) X(cuFlushGPUDirectRDMAWrites) \
  X(cuFuncGetAttribute) X(cuFuncGetModule) X(cuFuncGetName) X(cuFuncGetParamInfo) X(cuFuncIsLoaded) X(cuFuncLoad) \
  X(cuFuncSetAttribute) X(cuFuncSetBlockShape) X(cuFuncSetCacheConfig) X(cuFuncSetSharedMemConfig) \
  X(cuFuncSetSharedSize) X(cuGetErrorName) X(cuGetErrorString) X(cuGetExportTable) X(cuGetProcAddress_v2_ptsz) \
  X(cuGraphAddBatchMemOpNode) X(cuGraphAddChildGraphNode) X(cuGraphAddDependencies) X(cuGraphAddDependencies_v2) \
  X(cuGraphAddEmptyNode) X(cuGraphAddEventRecordNode) X(cuGraphAddEventWaitNode) \
  X(cuGraphAddExternalSemaphoresSignalNode) X(cuGraphAddExternalSemaphoresWaitNode) X(cuGraphAddHostNode) \
  X(cuGraphAddKernelNode) X(cuGraphAddKernelNode_v2) X(cuGraphAddMemAllocNode) X(cuGraphAddMemFreeNode) \
  X(cuGraphAddMemcpyNode) X(cuGraphAddMemsetNode) X(cuGraphAddNode) X(cuGraphAddNode_v2) \
  X(cuGraphBatchMemOpNodeGetParams) X(cuGraphBatchMemOpNodeSetParams) X(cuGraphChildGraphNodeGetGraph) \
  X(cuGraphClone) X(cuGraphConditionalHandleCreate) X(cuGraphCreate) X(cuGraphDebugDotPrint) X(cuGraphDestroy) \
  X(cuGraphDestroyNode) X(cuGraphEventRecordNodeGetEvent) X(cuGraphEventRecordNodeSetEvent) \
  X(cuGraphEventWaitNodeGetEvent) X(cuGraphEventWaitNodeSetEvent) X(cuGraphExecBatchMemOpNodeSetParams) \
  X(cuGraphExecChildGraphNodeSetParams) X(cuGraphExecDestroy) X(cuGraphExecEventRecordNodeSetEvent) \
  X(cuGraphExecEventWaitNodeSetEvent) X(cuGraphExecExternalSemaphoresSignalNodeSetParams) \
  X(cuGraphExecExternalSemaphoresWaitNodeSetParams) X(cuGraphExecGetFlags) X(cuGraphExecHostNodeSetParams) \
  X(cuGraphExecKernelNodeSetParams) X(cuGraphExecKernelNodeSetParams_v2) X(cuGraphExecMemcpyNodeSetParams) \
  X(cuGraphExecMemsetNodeSetParams) X(cuGraphExecNodeSetParams) X(cuGraphExecUpdate) X(cuGraphExecUpdate_v2) \
  X(cuGraphExternalSemaphoresSignalNodeGetParams) X(cuGraphExternalSemaphoresSignalNodeSetParams) \
  X(cuGraphExternalSemaphoresWaitNodeGetParams) X(cuGraphExternalSemaphoresWaitNodeSetParams) X(cuGraphGetEdges) \
  X(cuGraphGetEdges_v2) X(cuGraphGetNodes) X(cuGraphGetRootNodes) X(cuGraphHostNodeGetParams) \
  X(cuGraphHostNodeSetParams) X(cuGraphInstantiate) X(cuGraphInstantiateWithParams) X(cuGraphInstantiate_v2) \
  X(cuGraphKernelNodeCopyAttributes) X(cuGraphKernelNodeGetAttribute) X(cuGraphKernelNodeGetParams) \
  X(cuGraphKernelNodeGetParams_v2) X(cuGraphKernelNodeSetAttribute) X(cuGraphKernelNodeSetParams) \
  X(cuGraphKernelNodeSetParams_v2) X(cuGraphLaunch) X(cuGraphMemAllocNodeGetParams) X(cuGraphMemFreeNodeGetParams) \
  X(cuGraphMemcpyNodeGetParams) X(cuGraphMemcpyNodeSetParams) X(cuGraphMemsetNodeGetParams) \
  X(cuGraphMemsetNodeSetParams) X(cuGraphNodeFindInClone) X(cuGraphNodeGetDependencies) \
  X(cuGraphNodeGetDependencies_v2) X(cuGraphNodeGetDependentNodes) X(cuGraphNodeGetDependentNodes_v2) \
  X(cuGraphNodeGetEnabled) X(cuGraphNodeGetType) X(cuGraphNodeSetEnabled) X(cuGraphNodeSetParams) \
  X(cuGraphReleaseUserObject) X(cuGraphRemoveDependencies) X(cuGraphRemoveDependencies_v2) \
  X(cuGraphRetainUserObject) X(cuGraphUpload) X(cuGraphicsMapResources) X(cuGraphicsResourceGetMappedMipmappedArray) \
  X(cuGraphicsResourceGetMappedPointer) X(cuGraphicsResourceGetMappedPointer_v2) X(cuGraphicsResourceSetMapFlags) \
  X(cuGraphicsResourceSetMapFlags_v2) X(cuGraphicsSubResourceGetMappedArray) X(cuGraphicsUnmapResources) \
  X(cuGraphicsUnregisterResource) X(cuGreenCtxCreate) X(cuGreenCtxDestroy) X(cuGreenCtxGetDevResource) \
  X(cuGreenCtxGetId) X(cuGreenCtxRecordEvent) X(cuGreenCtxStreamCreate) X(cuGreenCtxWaitEvent) \
  X(cuImportExternalMemory) X(cuImportExternalSemaphore) X(cuIpcCloseMemHandle) X(cuIpcGetEventHandle) \
  X(cuIpcGetMemHandle) X(cuIpcOpenEventHandle) X(cuIpcOpenMemHandle) X(cuIpcOpenMemHandle_v2) \
  X(cuKernelGetAttribute) X(cuKernelGetFunction) X(cuKernelGetLibrary) X(cuKernelGetName) X(cuKernelGetParamInfo) \
  X(cuKernelSetAttribute) X(cuKernelSetCacheConfig) X(cuLaunch) X(cuLaunchCooperativeKernel) \
  X(cuLaunchCooperativeKernelMultiDevice) X(cuLaunchGrid) X(cuLaunchGridAsync) X(cuLaunchHostFunc) X(cuLaunchKernel) \
  X(cuLaunchKernelEx) X(cuLibraryEnumerateKernels) X(cuLibraryGetGlobal) X(cuLibraryGetKernel) \
  X(cuLibraryGetKernelCount) X(cuLibraryGetManaged) X(cuLibraryGetModule) X(cuLibraryGetUnifiedFunction) \
  X(cuLibraryLoadData) X(cuLibraryLoadFromFile) X(cuLibraryUnload) X(cuLinkAddData) X(cuLinkAddData_v2) \
  X(cuLinkAddFile) X(cuLinkAddFile_v2) X(cuLinkComplete) X(cuLinkCreate) X(cuLinkCreate_v2) X(cuLinkDestroy) \
  X(cuLogsCurrent) X(cuLogsDumpToFile) X(cuLogsDumpToMemory) X(cuLogsRegisterCallback) X(cuLogsUnregisterCallback) \
  X(cuMemAddressFree) X(cuMemAddressReserve) X(cuMemAdvise) X(cuMemAdvise_v2) X(cuMemAlloc) X(cuMemAllocAsync) \
  X(cuMemAllocFromPoolAsync) X(cuMemAllocHost) X(cuMemAllocHost_v2) X(cuMemAllocManaged) X(cuMemAllocPitch) \
  X(cuMemAllocPitch_v2) X(cuMemAlloc_v2) X(cuMemBatchDecompressAsync) X(cuMemCreate) \
  X(cuMemDiscardAndPrefetchBatchAsync) X(cuMemDiscardBatchAsync) X(cuMemExportToShareableHandle) X(cuMemFree) \
  X(cuMemFreeAsync) X(cuMemFreeHost) X(cuMemFree_v2) X(cuMemGetAccess) X(cuMemGetAddressRange) \
  X(cuMemGetAddressRange_v2) X(cuMemGetAllocationGranularity) X(cuMemGetAllocationPropertiesFromHandle) \
  X(cuMemGetDefaultMemPool) X(cuMemGetHandleForAddressRange) X(cuMemGetInfo) X(cuMemGetInfo_v2) X(cuMemGetMemPool) \
  X(cuMemHostAlloc) X(cuMemHostGetDevicePointer) X(cuMemHostGetDevicePointer_v2) X(cuMemHostGetFlags) \
  X(cuMemHostRegister) X(cuMemHostRegister_v2) X(cuMemHostUnregister) X(cuMemImportFromShareableHandle) X(cuMemMap) \
  X(cuMemMapArrayAsync) X(cuMemPoolCreate) X(cuMemPoolDestroy) X(cuMemPoolExportPointer) \
  X(cuMemPoolExportToShareableHandle) X(cuMemPoolGetAccess) X(cuMemPoolGetAttribute) \
  X(cuMemPoolImportFromShareableHandle) X(cuMemPoolImportPointer) X(cuMemPoolSetAccess) X(cuMemPoolSetAttribute) \
  X(cuMemPoolTrimTo) X(cuMemPrefetchAsync) X(cuMemPrefetchAsync_ptsz) X(cuMemPrefetchAsync_v2) \
  X(cuMemPrefetchBatchAsync) X(cuMemRangeGetAttribute) X(cuMemRangeGetAttributes) X(cuMemRelease) \
  X(cuMemRetainAllocationHandle) X(cuMemSetAccess) X(cuMemSetMemPool) X(cuMemUnmap) X(cuMemcpy) X(cuMemcpy2D) \
  X(cuMemcpy2DAsync) X(cuMemcpy2DAsync_v2) X(cuMemcpy2DUnaligned) X(cuMemcpy2DUnaligned_v2) X(cuMemcpy2D_v2) \
  X(cuMemcpy3D) X(cuMemcpy3DAsync) X(cuMemcpy3DAsync_v2) X(cuMemcpy3DBatchAsync) X(cuMemcpy3DBatchAsync_ptsz) \
  X(cuMemcpy3DBatchAsync_v2) X(cuMemcpy3DPeer) X(cuMemcpy3DPeerAsync) X(cuMemcpy3D_v2) X(cuMemcpyAsync) \
  X(cuMemcpyAtoA) X(cuMemcpyAtoA_v2) X(cuMemcpyAtoD) X(cuMemcpyAtoD_v2) X(cuMemcpyAtoH) X(cuMemcpyAtoHAsync) \
  X(cuMemcpyAtoHAsync_v2) X(cuMemcpyAtoH_v2) X(cuMemcpyBatchAsync) X(cuMemcpyBatchAsync_ptsz) \
  X(cuMemcpyBatchAsync_v2) X(cuMemcpyDtoA) X(cuMemcpyDtoA_v2) X(cuMemcpyDtoD) X(cuMemcpyDtoDAsync) \
  X(cuMemcpyDtoDAsync_v2) X(cuMemcpyDtoD_v2) X(cuMemcpyDtoH) X(cuMemcpyDtoHAsync) X(cuMemcpyDtoHAsync_v2) \
  X(cuMemcpyDtoH_v2) X(cuMemcpyHtoA) X(cuMemcpyHtoAAsync) X(cuMemcpyHtoAAsync_v2) X(cuMemcpyHtoA_v2) X(cuMemcpyHtoD) \
  X(cuMemcpyHtoDAsync) X(cuMemcpyHtoDAsync_v2) X(cuMemcpyHtoD_v2) X(cuMemcpyPeer) X(cuMemcpyPeerAsync) \
  X(cuMemsetD16) X(cuMemsetD16Async) X(cuMemsetD16_v2) X(cuMemsetD2D16) X(cuMemsetD2D16Async) X(cuMemsetD2D16_v2) \
  X(cuMemsetD2D32) X(cuMemsetD2D32Async) X(cuMemsetD2D32_v2) X(cuMemsetD2D8) X(cuMemsetD2D8Async) X(cuMemsetD2D8_v2) \
  X(cuMemsetD32) X(cuMemsetD32Async) X(cuMemsetD32_v2) X(cuMemsetD8) X(cuMemsetD8Async) X(cuMemsetD8_v2) \
  X(cuMipmappedArrayCreate) X(cuMipmappedArrayDestroy) X(cuMipmappedArrayGetLevel) \
  X(cuMipmappedArrayGetMemoryRequirements) X(cuMipmappedArrayGetSparseProperties) X(cuModuleEnumerateFunctions) \
  X(cuModuleGetFunction) X(cuModuleGetFunctionCount) X(cuModuleGetGlobal) X(cuModuleGetGlobal_v2) \
  X(cuModuleGetLoadingMode) X(cuModuleGetSurfRef) X(cuModuleGetTexRef) X(cuModuleLoad) X(cuModuleLoadData) \
  X(cuModuleLoadDataEx) X(cuModuleLoadFatBinary) X(cuModuleUnload) X(cuMulticastAddDevice) X(cuMulticastBindAddr) \
  X(cuMulticastBindMem) X(cuMulticastCreate) X(cuMulticastGetGranularity) X(cuMulticastUnbind) \
  X(cuOccupancyAvailableDynamicSMemPerBlock) X(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags) X(cuOccupancyMaxActiveClusters) \
  X(cuOccupancyMaxPotentialBlockSize) X(cuOccupancyMaxPotentialBlockSizeWithFlags) \
  X(cuOccupancyMaxPotentialClusterSize) X(cuParamSetSize) X(cuParamSetTexRef) X(cuParamSetf) X(cuParamSeti) \
  X(cuParamSetv) X(cuPointerGetAttribute) X(cuPointerGetAttributes) X(cuPointerSetAttribute) X(cuProfilerStart) \
  X(cuProfilerStop) X(cuSignalExternalSemaphoresAsync) X(cuStreamAddCallback) X(cuStreamAttachMemAsync) \
  X(cuStreamBatchMemOp) X(cuStreamBatchMemOp_ptsz) X(cuStreamBatchMemOp_v2) X(cuStreamBeginCapture) \
  X(cuStreamBeginCaptureToGraph) X(cuStreamBeginCapture_ptsz) X(cuStreamBeginCapture_v2) X(cuStreamCopyAttributes) \
  X(cuStreamCreate) X(cuStreamCreateWithPriority) X(cuStreamDestroy) X(cuStreamDestroy_v2) X(cuStreamEndCapture) \
  X(cuStreamGetAttribute) X(cuStreamGetCaptureInfo) X(cuStreamGetCaptureInfo_ptsz) X(cuStreamGetCaptureInfo_v2) \
  X(cuStreamGetCaptureInfo_v2_ptsz) X(cuStreamGetCaptureInfo_v3) X(cuStreamGetCtx) X(cuStreamGetCtx_v2) \
  X(cuStreamGetDevice) X(cuStreamGetFlags) X(cuStreamGetGreenCtx) X(cuStreamGetId) X(cuStreamGetPriority) \
  X(cuStreamIsCapturing) X(cuStreamQuery) X(cuStreamSetAttribute) X(cuStreamSynchronize) \
  X(cuStreamUpdateCaptureDependencies) X(cuStreamUpdateCaptureDependencies_ptsz) \
  X(cuStreamUpdateCaptureDependencies_v2) X(cuStreamWaitEvent) X(cuStreamWaitValue32) X(cuStreamWaitValue32_ptsz) \
  X(cuStreamWaitValue32_v2) X(cuStreamWaitValue64) X(cuStreamWaitValue64_ptsz) X(cuStreamWaitValue64_v2) \
  X(cuStreamWriteValue32) X(cuStreamWriteValue32_ptsz) X(cuStreamWriteValue32_v2) X(cuStreamWriteValue64) \
  X(cuStreamWriteValue64_ptsz) X(cuStreamWriteValue64_v2) X(cuSurfObjectCreate) X(cuSurfObjectDestroy) \
  X(cuSurfObjectGetResourceDesc) X(cuSurfRefGetArray) X(cuSurfRefSetArray) X(cuTensorMapEncodeIm2col) \
  X(cuTensorMapEncodeIm2colWide) X(cuTensorMapEncodeTiled) X(cuTensorMapReplaceAddress) X(cuTexObjectCreate) \
  X(cuTexObjectDestroy) X(cuTexObjectGetResourceDesc) X(cuTexObjectGetResourceViewDesc) X(cuTexObjectGetTextureDesc) \
  X(cuTexRefCreate) X(cuTexRefDestroy) X(cuTexRefGetAddress) X(cuTexRefGetAddressMode) X(cuTexRefGetAddress_v2) \
  X(cuTexRefGetArray) X(cuTexRefGetBorderColor) X(cuTexRefGetFilterMode) X(cuTexRefGetFlags) X(cuTexRefGetFormat) \
  X(cuTexRefGetMaxAnisotropy) X(cuTexRefGetMipmapFilterMode) X(cuTexRefGetMipmapLevelBias) \
  X(cuTexRefGetMipmapLevelClamp) X(cuTexRefGetMipmappedArray) X(cuTexRefSetAddress) X(cuTexRefSetAddress2D) \
  X(cuTexRefSetAddress2D_v2) X(cuTexRefSetAddress2D_v3) X(cuTexRefSetAddressMode) X(cuTexRefSetAddress_v2) \
  X(cuTexRefSetArray) X(cuTexRefSetBorderColor) X(cuTexRefSetFilterMode) X(cuTexRefSetFlags) X(cuTexRefSetFormat) \
  X(cuTexRefSetMaxAnisotropy) X(cuTexRefSetMipmapFilterMode) X(cuTexRefSetMipmapLevelBias) \
  X(cuTexRefSetMipmapLevelClamp) X(cuTexRefSetMipmappedArray) X(cuThreadExchangeStreamCaptureMode) \
  X(cuUserObjectCreate) X(cuUserObjectRelease) X(cuUserObjectRetain) X(cuWaitExternalSemaphoresAsync)

#define FOR_EACH_NVML_FUNCTION(X) \
  X(nvmlComputeInstanceDestroy) X(nvmlComputeInstanceGetInfo_v2) X(nvmlDeviceClearAccountingPids) \
  X(nvmlDeviceClearCpuAffinity) X(nvmlDeviceClearEccErrorCounts) X(nvmlDeviceClearFieldValues) \
  X(nvmlDeviceCreateGpuInstance) X(nvmlDeviceCreateGpuInstanceWithPlacement) X(nvmlDeviceDiscoverGpus) \
  X(nvmlDeviceFreezeNvLinkUtilizationCounter) X(nvmlDeviceGetAPIRestriction) X(nvmlDeviceGetAccountingBufferSize) \
  X(nvmlDeviceGetAccountingMode) X(nvmlDeviceGetAccountingPids) X(nvmlDeviceGetAccountingStats) \
  X(nvmlDeviceGetAccountingStats_v2) X(nvmlDeviceGetActiveVgpus) X(nvmlDeviceGetAdaptiveClockInfoStatus) \
  X(nvmlDeviceGetAdaptiveTgpModeInfo_v1) X(nvmlDeviceGetAddressingMode) X(nvmlDeviceGetApplicationsClock) \
  X(nvmlDeviceGetArchitecture) X(nvmlDeviceGetAttributes_v2) X(nvmlDeviceGetAutoBoostedClocksEnabled) \
  X(nvmlDeviceGetBAR1MemoryInfo) X(nvmlDeviceGetBBXTimeData_v1) X(nvmlDeviceGetBankRemapperStatus_v1) \
  X(nvmlDeviceGetBoardId) X(nvmlDeviceGetBoardPartNumber) X(nvmlDeviceGetBrand) X(nvmlDeviceGetBridgeChipInfo) \
  X(nvmlDeviceGetBusType) X(nvmlDeviceGetC2cModeInfoV) X(nvmlDeviceGetCapabilities) X(nvmlDeviceGetClkMonStatus) \
  X(nvmlDeviceGetClock) X(nvmlDeviceGetClockInfo) X(nvmlDeviceGetClockOffsets) X(nvmlDeviceGetComputeInstanceId) \
  X(nvmlDeviceGetComputeMode) X(nvmlDeviceGetComputeRunningProcesses_v2) X(nvmlDeviceGetComputeRunningProcesses_v3) \
  X(nvmlDeviceGetConfComputeGpuAttestationReport) X(nvmlDeviceGetConfComputeGpuCertificate) \
  X(nvmlDeviceGetConfComputeMemSizeInfo) X(nvmlDeviceGetConfComputeProtectedMemoryUsage) X(nvmlDeviceGetCoolerInfo) \
  X(nvmlDeviceGetCount_v2) X(nvmlDeviceGetCpuAffinity) X(nvmlDeviceGetCpuAffinityWithinScope) \
  X(nvmlDeviceGetCreatableVgpus) X(nvmlDeviceGetCudaComputeCapability) X(nvmlDeviceGetCurrPcieLinkGeneration) \
  X(nvmlDeviceGetCurrPcieLinkWidth) X(nvmlDeviceGetCurrentClockFreqs) X(nvmlDeviceGetCurrentClocksEventReasons) \
  X(nvmlDeviceGetCurrentClocksThrottleReasons) X(nvmlDeviceGetDecoderUtilization) \
  X(nvmlDeviceGetDefaultApplicationsClock) X(nvmlDeviceGetDefaultEccMode) X(nvmlDeviceGetDetailedEccErrors) \
  X(nvmlDeviceGetDeviceHandleFromMigDeviceHandle) X(nvmlDeviceGetDisplayActive) X(nvmlDeviceGetDisplayMode) \
  X(nvmlDeviceGetDramEncryptionMode) X(nvmlDeviceGetDriverModel) X(nvmlDeviceGetDriverModel_v2) \
  X(nvmlDeviceGetDynamicPstatesInfo) X(nvmlDeviceGetEccMode) X(nvmlDeviceGetEncoderCapacity) \
  X(nvmlDeviceGetEncoderSessions) X(nvmlDeviceGetEncoderStats) X(nvmlDeviceGetEncoderUtilization) \
  X(nvmlDeviceGetEnforcedPowerLimit) X(nvmlDeviceGetFBCSessions) X(nvmlDeviceGetFBCStats) \
  X(nvmlDeviceGetFanControlPolicy_v2) X(nvmlDeviceGetFanSpeed) X(nvmlDeviceGetFanSpeedRPM) \
  X(nvmlDeviceGetFanSpeed_v2) X(nvmlDeviceGetFieldValues) X(nvmlDeviceGetGpcClkMinMaxVfOffset) \
  X(nvmlDeviceGetGpcClkVfOffset) X(nvmlDeviceGetGpuFabricInfo) X(nvmlDeviceGetGpuFabricInfoV) \
  X(nvmlDeviceGetGpuFabricInfo_v4) X(nvmlDeviceGetGpuInstanceById) X(nvmlDeviceGetGpuInstanceId) \
  X(nvmlDeviceGetGpuInstancePossiblePlacements_v2) X(nvmlDeviceGetGpuInstanceProfileInfo) \
  X(nvmlDeviceGetGpuInstanceProfileInfoByIdV) X(nvmlDeviceGetGpuInstanceProfileInfoV) \
  X(nvmlDeviceGetGpuInstanceRemainingCapacity) X(nvmlDeviceGetGpuInstances) X(nvmlDeviceGetGpuMaxPcieLinkGeneration) \
  X(nvmlDeviceGetGpuOperationMode) X(nvmlDeviceGetGraphicsRunningProcesses_v2) \
  X(nvmlDeviceGetGraphicsRunningProcesses_v3) X(nvmlDeviceGetGridLicensableFeatures_v4) \
  X(nvmlDeviceGetGspFirmwareMode) X(nvmlDeviceGetGspFirmwareVersion) X(nvmlDeviceGetHandleByIndex_v2) \
  X(nvmlDeviceGetHandleByPciBusId_v2) X(nvmlDeviceGetHandleBySerial) X(nvmlDeviceGetHandleByUUID) \
  X(nvmlDeviceGetHandleByUUIDV) X(nvmlDeviceGetHostVgpuMode) X(nvmlDeviceGetHostname_v1) X(nvmlDeviceGetIndex) \
  X(nvmlDeviceGetInforomConfigurationChecksum) X(nvmlDeviceGetInforomImageVersion) X(nvmlDeviceGetInforomVersion) \
  X(nvmlDeviceGetIrqNum) X(nvmlDeviceGetJpgUtilization) X(nvmlDeviceGetLastBBXFlushTime) \
  X(nvmlDeviceGetMPSComputeRunningProcesses_v2) X(nvmlDeviceGetMPSComputeRunningProcesses_v3) \
  X(nvmlDeviceGetMarginTemperature) X(nvmlDeviceGetMaxClockInfo) X(nvmlDeviceGetMaxCustomerBoostClock) \
  X(nvmlDeviceGetMaxMigDeviceCount) X(nvmlDeviceGetMaxPcieLinkGeneration) X(nvmlDeviceGetMaxPcieLinkWidth) \
  X(nvmlDeviceGetMemClkMinMaxVfOffset) X(nvmlDeviceGetMemClkVfOffset) X(nvmlDeviceGetMemoryAffinity) \
  X(nvmlDeviceGetMemoryBusWidth) X(nvmlDeviceGetMemoryErrorCounter) X(nvmlDeviceGetMemoryInfo) \
  X(nvmlDeviceGetMemoryInfo_v2) X(nvmlDeviceGetMemoryLimits_v1) X(nvmlDeviceGetMigDeviceHandleByIndex) \
  X(nvmlDeviceGetMigMode) X(nvmlDeviceGetMinMaxClockOfPState) X(nvmlDeviceGetMinMaxFanSpeed) \
  X(nvmlDeviceGetMinorNumber) X(nvmlDeviceGetModuleId) X(nvmlDeviceGetMultiGpuBoard) X(nvmlDeviceGetName) \
  X(nvmlDeviceGetNumFans) X(nvmlDeviceGetNumGpuCores) X(nvmlDeviceGetNumaNodeId) X(nvmlDeviceGetNvLinkCapability) \
  X(nvmlDeviceGetNvLinkErrorCounter) X(nvmlDeviceGetNvLinkInfo) X(nvmlDeviceGetNvLinkRemoteDeviceType) \
  X(nvmlDeviceGetNvLinkRemotePciInfo_v2) X(nvmlDeviceGetNvLinkState) X(nvmlDeviceGetNvLinkTelemetrySamples_v1) \
  X(nvmlDeviceGetNvLinkUtilizationControl) X(nvmlDeviceGetNvLinkUtilizationCounter) X(nvmlDeviceGetNvLinkVersion) \
  X(nvmlDeviceGetNvlinkBwMode) X(nvmlDeviceGetNvlinkSupportedBwModes) X(nvmlDeviceGetOfaUtilization) \
  X(nvmlDeviceGetP2PStatus) X(nvmlDeviceGetPciInfoExt) X(nvmlDeviceGetPciInfo_v3) X(nvmlDeviceGetPcieLinkMaxSpeed) \
  X(nvmlDeviceGetPcieReplayCounter) X(nvmlDeviceGetPcieSpeed) X(nvmlDeviceGetPcieThroughput) X(nvmlDeviceGetPdi) \
  X(nvmlDeviceGetPerformanceModes) X(nvmlDeviceGetPerformanceState) X(nvmlDeviceGetPersistenceMode) \
  X(nvmlDeviceGetPgpuMetadataString) X(nvmlDeviceGetPlatformInfo) X(nvmlDeviceGetPowerManagementDefaultLimit) \
  X(nvmlDeviceGetPowerManagementLimit) X(nvmlDeviceGetPowerManagementLimitConstraints) \
  X(nvmlDeviceGetPowerManagementMode) X(nvmlDeviceGetPowerMizerMode_v1) X(nvmlDeviceGetPowerSource) \
  X(nvmlDeviceGetPowerState) X(nvmlDeviceGetPowerUsage) X(nvmlDeviceGetProcessUtilization) \
  X(nvmlDeviceGetProcessesUtilizationInfo) X(nvmlDeviceGetRemappedRows) X(nvmlDeviceGetRemappedRows_v2) \
  X(nvmlDeviceGetRepairStatus) X(nvmlDeviceGetRetiredPages) X(nvmlDeviceGetRetiredPagesPendingStatus) \
  X(nvmlDeviceGetRetiredPages_v2) X(nvmlDeviceGetRowRemapperHistogram) X(nvmlDeviceGetRunningProcessDetailList) \
  X(nvmlDeviceGetSamples) X(nvmlDeviceGetSerial) X(nvmlDeviceGetSramEccErrorStatus) \
  X(nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts) X(nvmlDeviceGetSupportedClocksEventReasons) \
  X(nvmlDeviceGetSupportedClocksThrottleReasons) X(nvmlDeviceGetSupportedEventTypes) \
  X(nvmlDeviceGetSupportedGraphicsClocks) X(nvmlDeviceGetSupportedMemoryClocks) \
  X(nvmlDeviceGetSupportedPerformanceStates) X(nvmlDeviceGetSupportedVgpus) X(nvmlDeviceGetTargetFanSpeed) \
  X(nvmlDeviceGetTemperature) X(nvmlDeviceGetTemperatureThreshold) X(nvmlDeviceGetTemperatureV) \
  X(nvmlDeviceGetThermalSettings) X(nvmlDeviceGetTopologyCommonAncestor) X(nvmlDeviceGetTopologyNearestGpus) \
  X(nvmlDeviceGetTotalEccErrors) X(nvmlDeviceGetTotalEnergyConsumption) X(nvmlDeviceGetUUID) \
  X(nvmlDeviceGetUnrepairableMemoryFlag_v1) X(nvmlDeviceGetUtilizationRates) X(nvmlDeviceGetVbiosVersion) \
  X(nvmlDeviceGetVgpuCapabilities) X(nvmlDeviceGetVgpuHeterogeneousMode) \
  X(nvmlDeviceGetVgpuInstancesUtilizationInfo) X(nvmlDeviceGetVgpuMetadata) X(nvmlDeviceGetVgpuProcessUtilization) \
  X(nvmlDeviceGetVgpuProcessesUtilizationInfo) X(nvmlDeviceGetVgpuSchedulerCapabilities) \
  X(nvmlDeviceGetVgpuSchedulerLog) X(nvmlDeviceGetVgpuSchedulerLog_v2) X(nvmlDeviceGetVgpuSchedulerState) \
  X(nvmlDeviceGetVgpuSchedulerState_v2) X(nvmlDeviceGetVgpuTypeCreatablePlacements) \
  X(nvmlDeviceGetVgpuTypeSupportedPlacements) X(nvmlDeviceGetVgpuUtilization) X(nvmlDeviceGetViolationStatus) \
  X(nvmlDeviceGetVirtualizationMode) X(nvmlDeviceIsMigDeviceHandle) X(nvmlDeviceModifyDrainState) \
  X(nvmlDeviceOnSameBoard) X(nvmlDevicePerfMetricsGetSamples_v1) X(nvmlDevicePowerSmoothingActivatePresetProfile) \
  X(nvmlDevicePowerSmoothingSetState) X(nvmlDevicePowerSmoothingUpdatePresetProfileParam) \
  X(nvmlDeviceQueryDrainState) X(nvmlDeviceReadPRMCounters_v1) X(nvmlDeviceReadWritePRM_v1) \
  X(nvmlDeviceRegisterEvents) X(nvmlDeviceRemoveGpu) X(nvmlDeviceResetApplicationsClocks) \
  X(nvmlDeviceResetGpuLockedClocks) X(nvmlDeviceResetMemoryLockedClocks) X(nvmlDeviceResetNvLinkErrorCounters) \
  X(nvmlDeviceResetNvLinkUtilizationCounter) X(nvmlDeviceSetAPIRestriction) X(nvmlDeviceSetAccountingMode) \
  X(nvmlDeviceSetAdaptiveTgpMode_v1) X(nvmlDeviceSetApplicationsClocks) X(nvmlDeviceSetAutoBoostedClocksEnabled) \
  X(nvmlDeviceSetClockOffsets) X(nvmlDeviceSetComputeMode) X(nvmlDeviceSetConfComputeUnprotectedMemSize) \
  X(nvmlDeviceSetCpuAffinity) X(nvmlDeviceSetDefaultAutoBoostedClocksEnabled) X(nvmlDeviceSetDefaultFanSpeed_v2) \
  X(nvmlDeviceSetDramEncryptionMode) X(nvmlDeviceSetDriverModel) X(nvmlDeviceSetEccMode) \
  X(nvmlDeviceSetFanControlPolicy) X(nvmlDeviceSetFanSpeed_v2) X(nvmlDeviceSetGpcClkVfOffset) \
  X(nvmlDeviceSetGpuLockedClocks) X(nvmlDeviceSetGpuOperationMode) X(nvmlDeviceSetHostname_v1) \
  X(nvmlDeviceSetMemClkVfOffset) X(nvmlDeviceSetMemoryLimits_v1) X(nvmlDeviceSetMemoryLockedClocks) \
  X(nvmlDeviceSetMigMode) X(nvmlDeviceSetNvLinkDeviceLowPowerThreshold) X(nvmlDeviceSetNvLinkUtilizationControl) \
  X(nvmlDeviceSetNvlinkBwMode) X(nvmlDeviceSetNvlinkBwModeAsync_v1) X(nvmlDeviceSetPersistenceMode) \
  X(nvmlDeviceSetPowerManagementLimit) X(nvmlDeviceSetPowerManagementLimit_v2) X(nvmlDeviceSetPowerMizerMode_v1) \
  X(nvmlDeviceSetRusdSettings_v1) X(nvmlDeviceSetTemperatureThreshold) X(nvmlDeviceSetVgpuCapabilities) \
  X(nvmlDeviceSetVgpuHeterogeneousMode) X(nvmlDeviceSetVgpuSchedulerState) X(nvmlDeviceSetVgpuSchedulerState_v2) \
  X(nvmlDeviceSetVirtualizationMode) X(nvmlDeviceValidateInforom) X(nvmlDeviceVgpuForceGspUnload) \
  X(nvmlDeviceWorkloadPowerProfileClearRequestedProfiles) X(nvmlDeviceWorkloadPowerProfileGetCurrentProfiles) \
  X(nvmlDeviceWorkloadPowerProfileGetProfilesInfo) X(nvmlDeviceWorkloadPowerProfileSetRequestedProfiles) \
  X(nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1) X(nvmlEventSetCreate) X(nvmlEventSetFree) \
  X(nvmlEventSetGetContextCount_v1) X(nvmlEventSetGetContextData_v1) X(nvmlEventSetGetContextInfo_v1) \
  X(nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1) X(nvmlEventSetRegisterGpuOperationalEvents_v1) \
  X(nvmlEventSetWait_v2) X(nvmlEventSetWait_v3) X(nvmlGetExcludedDeviceCount) X(nvmlGetExcludedDeviceInfoByIndex) \
  X(nvmlGetVgpuCompatibility) X(nvmlGetVgpuDriverCapabilities) X(nvmlGetVgpuVersion) X(nvmlGpmMetricsGet) \
  X(nvmlGpmMigSampleGet) X(nvmlGpmQueryDeviceSupport) X(nvmlGpmQueryIfStreamingEnabled) X(nvmlGpmSampleAlloc) \
  X(nvmlGpmSampleFree) X(nvmlGpmSampleGet) X(nvmlGpmSetStreamingEnabled) X(nvmlGpuInstanceCreateComputeInstance) \
  X(nvmlGpuInstanceCreateComputeInstanceWithPlacement) X(nvmlGpuInstanceDestroy) X(nvmlGpuInstanceGetActiveVgpus) \
  X(nvmlGpuInstanceGetComputeInstanceById) X(nvmlGpuInstanceGetComputeInstancePossiblePlacements) \
  X(nvmlGpuInstanceGetComputeInstanceProfileInfo) X(nvmlGpuInstanceGetComputeInstanceProfileInfoV) \
  X(nvmlGpuInstanceGetComputeInstanceRemainingCapacity) X(nvmlGpuInstanceGetComputeInstances) \
  X(nvmlGpuInstanceGetCreatableVgpus) X(nvmlGpuInstanceGetInfo) X(nvmlGpuInstanceGetVgpuHeterogeneousMode) \
  X(nvmlGpuInstanceGetVgpuSchedulerLog) X(nvmlGpuInstanceGetVgpuSchedulerLog_v2) \
  X(nvmlGpuInstanceGetVgpuSchedulerState) X(nvmlGpuInstanceGetVgpuSchedulerState_v2) \
  X(nvmlGpuInstanceGetVgpuTypeCreatablePlacements) X(nvmlGpuInstanceSetVgpuHeterogeneousMode) \
  X(nvmlGpuInstanceSetVgpuSchedulerState) X(nvmlGpuInstanceSetVgpuSchedulerState_v2) X(nvmlSetVgpuVersion) \
  X(nvmlShutdown) X(nvmlSystemEventSetCreate) X(nvmlSystemEventSetFree) X(nvmlSystemEventSetWait) \
  X(nvmlSystemGetCPER_v1) X(nvmlSystemGetConfComputeCapabilities) X(nvmlSystemGetConfComputeGpusReadyState) \
  X(nvmlSystemGetConfComputeKeyRotationThresholdInfo) X(nvmlSystemGetConfComputeSettings) \
  X(nvmlSystemGetConfComputeState) X(nvmlSystemGetCudaDriverVersion) X(nvmlSystemGetCudaDriverVersion_v2) \
  X(nvmlSystemGetDriverBranch) X(nvmlSystemGetDriverVersion) X(nvmlSystemGetHicVersion) X(nvmlSystemGetNVMLVersion) \
  X(nvmlSystemGetNvlinkBwMode) X(nvmlSystemGetProcessName) X(nvmlSystemGetTopologyGpuSet) \
  X(nvmlSystemRegisterEvents) X(nvmlSystemSetConfComputeGpusReadyState) \
  X(nvmlSystemSetConfComputeKeyRotationThresholdInfo) X(nvmlSystemSetNvlinkBwMode) X(nvmlUnitGetCount) \
  X(nvmlUnitGetDevices) X(nvmlUnitGetFanSpeedInfo) X(nvmlUnitGetHandleByIndex) X(nvmlUnitGetLedState) \
  X(nvmlUnitGetPsuInfo) X(nvmlUnitGetTemperature) X(nvmlUnitGetUnitInfo) X(nvmlUnitSetLedState) \
  X(nvmlVgpuInstanceClearAccountingPids) X(nvmlVgpuInstanceGetAccountingMode) X(nvmlVgpuInstanceGetAccountingPids) \
  X(nvmlVgpuInstanceGetAccountingStats) X(nvmlVgpuInstanceGetEccMode) X(nvmlVgpuInstanceGetEncoderCapacity) \
  X(nvmlVgpuInstanceGetEncoderSessions) X(nvmlVgpuInstanceGetEncoderStats) X(nvmlVgpuInstanceGetFBCSessions) \
  X(nvmlVgpuInstanceGetFBCStats) X(nvmlVgpuInstanceGetFbUsage) X(nvmlVgpuInstanceGetFrameRateLimit) \
  X(nvmlVgpuInstanceGetGpuInstanceId) X(nvmlVgpuInstanceGetGpuPciId) X(nvmlVgpuInstanceGetLicenseInfo_v2) \
  X(nvmlVgpuInstanceGetLicenseStatus) X(nvmlVgpuInstanceGetMdevUUID) X(nvmlVgpuInstanceGetMetadata) \
  X(nvmlVgpuInstanceGetPlacementId) X(nvmlVgpuInstanceGetRuntimeStateSize) X(nvmlVgpuInstanceGetType) \
  X(nvmlVgpuInstanceGetUUID) X(nvmlVgpuInstanceGetVmDriverVersion) X(nvmlVgpuInstanceGetVmID) \
  X(nvmlVgpuInstanceSetEncoderCapacity) X(nvmlVgpuTypeGetBAR1Info) X(nvmlVgpuTypeGetCapabilities) \
  X(nvmlVgpuTypeGetClass) X(nvmlVgpuTypeGetDeviceID) X(nvmlVgpuTypeGetFbReservation) \
  X(nvmlVgpuTypeGetFrameRateLimit) X(nvmlVgpuTypeGetFramebufferSize) X(nvmlVgpuTypeGetGpuInstanceProfileId) \
  X(nvmlVgpuTypeGetGspHeapSize) X(nvmlVgpuTypeGetLicense) X(nvmlVgpuTypeGetMaxInstances) \
  X(nvmlVgpuTypeGetMaxInstancesPerGpuInstance) X(nvmlVgpuTypeGetMaxInstancesPerVm) X(nvmlVgpuTypeGetName) \
  X(nvmlVgpuTypeGetNumDisplayHeads) X(nvmlVgpuTypeGetResolution)
