// The best token of a workgroup: largest key, of equals the lowest id. Needs LANES and
// GL_KHR_shader_subgroup_arithmetic; subgroups have 4 lanes or more.

struct Best {
    uint key;
    uint id;
};

shared uint best_keys[LANES / 4];
shared uint best_ids[LANES / 4];

Best better(Best a, Best b) {
    bool second = b.key > a.key || (b.key == a.key && b.id < a.id);
    return second ? b : a;
}

// Every lane gets the result; the whole workgroup has to call it.
Best workgroup_best(Best own) {
    uint key = subgroupMax(own.key);
    uint id = subgroupMin(own.key == key ? own.id : NO_TOKEN);
    barrier();  // an earlier call's result has been read
    if (subgroupElect()) {
        best_keys[gl_SubgroupID] = key;
        best_ids[gl_SubgroupID] = id;
    }
    barrier();
    Best best = Best(best_keys[0], best_ids[0]);
    for (uint i = 1; i < gl_NumSubgroups; ++i) best = better(best, Best(best_keys[i], best_ids[i]));
    return best;
}
