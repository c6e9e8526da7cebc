// A word, for which a narrow window has a picture.
export function Narrow({ path, text }: { path: string; text: string }) {
  return (
    <>
      <svg class="narrow" viewBox="0 0 24 24" width="20" height="20" aria-hidden="true"><path d={path} /></svg>
      <span class="wide">{text}</span>
    </>
  );
}
