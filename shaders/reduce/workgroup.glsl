// Sums and maxima over a workgroup of any size; every lane gets the result. Call from uniform control flow.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require

const uint MAX_SUBGROUPS = 64; // 1024 lanes in subgroups of 16

shared float subgroup_results[MAX_SUBGROUPS];

float workgroup_sum(float value) {
    value = subgroupAdd(value);
    if (gl_NumSubgroups == 1)
        return value;
    barrier(); // an earlier call's results have been read
    if (subgroupElect())
        subgroup_results[gl_SubgroupID] = value;
    barrier();
    float total = 0;
    for (uint i = gl_SubgroupInvocationID; i < gl_NumSubgroups; i += gl_SubgroupSize)
        total += subgroup_results[i];
    return subgroupAdd(total);
}

float workgroup_max(float value) {
    value = subgroupMax(value);
    if (gl_NumSubgroups == 1)
        return value;
    barrier();
    if (subgroupElect())
        subgroup_results[gl_SubgroupID] = value;
    barrier();
    float largest = subgroup_results[0];
    for (uint i = gl_SubgroupInvocationID; i < gl_NumSubgroups; i += gl_SubgroupSize)
        largest = max(largest, subgroup_results[i]);
    return subgroupMax(largest);
}
