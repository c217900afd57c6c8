package main

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"scuda.dev/scuda/api"
)

// privateTable is a table that cuGetExportTable hands out. Word 0 of a sized table is its size in bytes.
type privateTable struct {
	name, id string
	words    int
	unsized  bool
	slots    map[int]string // hand-written functions; "" is NULL. Every other slot is a stub of its own.
}

var privateTables = []privateTable{
	{name: "CUDART_INTERFACE", id: "6bd5fb6c5bf4e74a8987d93912fd9df9", words: 13, slots: map[int]string{
		1: "scuda_cudart_load", 2: "scuda_cudart_primary", 6: "scuda_cudart_register", 7: "scuda_cudart_forget",
		8: "scuda_cudart_register_header", 9: "scuda_cudart_launch", 10: "", 12: "scuda_cudart_compilers"}},
	{name: "TOOLS_RUNTIME_CALLBACK_HOOKS", id: "a094798c2e742e7493f20800200c0a66", words: 7, slots: map[int]string{
		1: "scuda_hooks_deliver", 2: "scuda_hooks_runtime_flags", 3: "scuda_hooks_stream_id",
		4: "scuda_hooks_context_id", 5: "scuda_hooks_event", 6: "scuda_hooks_domain_flags"}},
	{name: "TOOLS_TLS", id: "42d85a8123f6cb478298f6e78a3aecdc", words: 3, slots: map[int]string{2: "scuda_tls_current"}},
	{name: "CTX_LOCAL_STORAGE", id: "c693336e1121df11a8c368f355d89593", words: 4, unsized: true, slots: map[int]string{
		0: "scuda_storage_put", 1: "scuda_storage_delete", 2: "scuda_storage_get", 3: ""}},
	{name: "CONTEXT_CHECKS", id: "263e88607cd2614392f6bbd5006dfa7e", words: 15,
		slots: map[int]string{2: "scuda_checks_wrapped", 3: "scuda_checks_zero"}},
	{name: "INTEGRITY_CHECK", id: "d4082055bde6704b8d34ba123c66e1f2", words: 3,
		slots: map[int]string{1: "scuda_integrity", 2: "scuda_integrity_bypass"}},
	{name: "CTX_STREAM", id: "21318c60971432488ca641ff7324c8f2", words: 93, slots: map[int]string{
		3: "scuda_stream_device", 4: "scuda_hooks_context_id", 39: "scuda_stream_object_id", 51: "scuda_stream_object",
		91: ""}},
	{name: "FUNCTION", id: "6e163fbeb958444d835ce182aff1991e", words: 99,
		slots: map[int]string{7: "scuda_function_each", 93: ""}},
	{name: "FP8", id: "cd3ea2c67076db4b882e52ae6c2d86f7", words: 2, slots: map[int]string{1: "scuda_fp8"}},
	// not NVIDIA's: for our libcupti.so (calls/profile.h)
	{name: "PROFILE", id: "7d0b1e35c06f4a1d9f52a3e4c8b96d21", words: 13, slots: map[int]string{
		1: "scuda_profile_serves", 2: "scuda_profile_attach", 3: "scuda_profile_flags", 4: "scuda_profile_asked",
		5: "scuda_profile_fetched", 6: "scuda_profile_ids", 7: "scuda_profile_kernel", 8: "scuda_profile_memory",
		9: "scuda_profile_objects", 10: "scuda_profile_log", 11: "scuda_profile_number",
		12: "scuda_profile_next"}},
	// likewise, for our libnccl.so.2 (calls/collective.h)
	{name: "COLLECTIVE", id: "2e915c087ad34bf68d1460be39c7f25a", words: 8, slots: map[int]string{
		1: "scuda_collective_serves", 2: "scuda_collective_offered", 3: "scuda_collective_servers",
		4: "scuda_collective_server_of", 5: "scuda_collective_ask", 6: "scuda_collective_check",
		7: "scuda_collective_enqueue"}},
	{name: "TPC_MAP", id: "1734dc26800d47458726c0f1e7dd8bca", words: 17,
		slots: map[int]string{4: "scuda_tpc_map", 13: "scuda_tpc_free"}},
}

// emitTables writes the arrays of the private tables.
func emitTables(_ *api.Spec, out *Output) error {
	b := &buffer{}
	b.f("#include \"calls/tables.h\"\n\n")
	b.f("#define STUB(table, slot) \\\n  static int32_t stub_##table##_##slot(uint64_t a, uint64_t b, uint64_t c, " +
		"uint64_t d, uint64_t e, uint64_t f) { \\\n")
	b.f("    return scuda_table_stub(#table, slot, a, b, c, d, e, f); \\\n  }\n")
	for _, t := range privateTables {
		b.f("\n")
		first := 1
		if t.unsized {
			first = 0
		}
		for _, slot := range slices.Sorted(maps.Keys(t.slots)) {
			if slot < first || slot >= t.words {
				return fmt.Errorf("%s has no slot %d", t.name, slot)
			}
		}
		for slot := first; slot < t.words; slot++ {
			if _, known := t.slots[slot]; !known {
				b.f("STUB(%s, %d)\n", t.name, slot)
			}
		}
	}
	for _, t := range privateTables {
		b.f("\nstatic const void *const slots_%s[%d] = {\n", t.name, t.words)
		for slot := range t.words {
			fn, known := t.slots[slot]
			switch {
			case slot == 0 && !t.unsized:
				b.f("  (void *)(uintptr_t)%d,\n", 8*t.words)
			case !known:
				b.f("  (void *)stub_%s_%d,\n", t.name, slot)
			case fn == "":
				b.f("  0,\n")
			default:
				b.f("  (void *)%s,\n", fn)
			}
		}
		b.f("};\n")
	}
	b.f("\nconst struct scuda_table scuda_tables[] = {\n")
	for _, t := range privateTables {
		id, err := hex.DecodeString(t.id)
		if err != nil || len(id) != 16 {
			return fmt.Errorf("%s: %q is no UUID", t.name, t.id)
		}
		b.f("  {{")
		for i, x := range id {
			if i > 0 {
				b.f(", ")
			}
			b.f("%#02x", x)
		}
		b.f("}, %q, (const uint64_t *)slots_%s},\n", t.name, t.name)
	}
	b.f("};\nconst uint32_t scuda_table_count = %d;\n", len(privateTables))
	return out.CFile("shim/front/gen/tables_gen.c", b.Bytes())
}
