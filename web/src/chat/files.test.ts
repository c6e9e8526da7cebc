import { expect, test } from "vitest";
import { attached, FileError, filesOf, withFiles } from "./files";

async function refusal(file: File, numThere = 0): Promise<unknown> {
  return attached(file, numThere).catch((error: unknown) => error instanceof FileError && [error.file, error.reason, error.bytes]);
}

test("a text file is read, and any other is refused by name", async () => {
  expect(await attached(new File(["héllo\n"], "a.txt"), 0)).toEqual({ name: "a.txt", text: "héllo\n" });
  expect(await refusal(new File([new Uint8Array([0xff, 0xfe, 0x41])], "b.bin"))).toEqual(["b.bin", "binary", 3]);
  expect(await refusal(new File(["a\0b"], "c.bin"))).toEqual(["c.bin", "binary", 3]);
  expect(await refusal(new File(["x".repeat(1_000_001)], "d.txt"))).toEqual(["d.txt", "large", 1_000_001]);
  expect(await refusal(new File(["x"], "e.txt"), 20)).toEqual(["e.txt", "many", 20]);
});

test("files are fenced by more than they have themselves, above the question", () => {
  expect(withFiles("Why?", [{ name: "a.md", text: "```\nx\n```\n" }])).toBe("a.md:\n````\n```\nx\n```\n````\n\nWhy?");
  expect(withFiles("Why?", [])).toBe("Why?");
  expect(withFiles("", [{ name: "a", text: "b" }])).toBe("a:\n```\nb\n```");
});

test("what is kept is read as far as it is as it should be", () => {
  expect(filesOf([{ name: "a", text: "b" }, { name: 1, text: "b" }, null, "x"])).toEqual([{ name: "a", text: "b" }]);
  expect(filesOf({})).toEqual([]);
});
